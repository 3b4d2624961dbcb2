"""Do the tests find defects that there really were? Each one is put back in a copy of the checkout, one at a time."""
