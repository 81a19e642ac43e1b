"""Models whose weights are split over ranks: what of the whole each rank's values are."""
