"""What a validation pass says: accuracies per data source, with failures counted and shown."""
