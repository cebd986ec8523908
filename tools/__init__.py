"""Programs for developers of Insync; not part of the package."""
