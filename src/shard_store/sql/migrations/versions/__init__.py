"""The revisions of the store's schema: `NNNN_what_it_does.py`. A released one is never changed."""
