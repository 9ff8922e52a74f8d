"""From a spec file to a published module: compile what the cache lacks, link, check, swap in."""
