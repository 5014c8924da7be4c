"""Model folders on disk: publishing them whole, and making clean ones out of what packages carry."""
