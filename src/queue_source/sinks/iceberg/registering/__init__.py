"""Objects become data files of a table as they are; those that do not fit are copied, or refused."""
