"""What redrive knows about failures, as data: codes and type names on the left, the kind and a phrase on the right."""
