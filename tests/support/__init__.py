"""What tests share: servers, stores, processes, terminals, and the scenes that several suites play in."""
