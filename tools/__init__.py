"""Programs for people who change Insync; no part of the package."""
