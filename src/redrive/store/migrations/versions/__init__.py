"""Each file is one step and is never changed once it was released."""
