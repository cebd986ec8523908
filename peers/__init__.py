"""Third-party software: for comparison and for interoperability."""
