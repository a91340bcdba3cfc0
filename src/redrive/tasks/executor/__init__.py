"""The executor: one loop that claims tasks, gives them to workers, enforces deadlines and decides what follows."""
