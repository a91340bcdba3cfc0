"""The programs of the demo, as a user would write them. They are copied into the demo's directory and run there."""
