"""One broker's shell around the rules: requests, replicas and followers' fetches."""
