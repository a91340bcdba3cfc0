"""Values of the configuration and the variables in them."""

from redrive.config.located import Located


def test_value_that_is_not_text_names_no_variable():
    assert Located(5, ("retries",)).unset() == ()
    assert Located(5, ("retries",)).filled().value == 5
