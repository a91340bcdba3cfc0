"""What makes a row good: a pydantic model, a dataframely schema, a function."""
