"""Property tests draw many more examples with `pytest --hypothesis-profile=thorough`."""

from hypothesis import settings

settings.register_profile("thorough", max_examples=10_000, deadline=None)
