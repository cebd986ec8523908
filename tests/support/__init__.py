"""What tests share. A folder has the helpers of the tests of the layer with its name."""
