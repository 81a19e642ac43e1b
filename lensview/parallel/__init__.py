"""Models whose weights are split over ranks: where each value's whole is, and how it is put together."""
