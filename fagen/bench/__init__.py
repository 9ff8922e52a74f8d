"""`fagen bench`: how fast a module's variants are beside torch's own attention, in one run."""
