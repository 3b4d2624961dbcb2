"""Object stores behind one interface: local files, S3, Google Cloud Storage, Azure."""
