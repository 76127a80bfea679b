"""Models, estimators and programs in the directories that Spark reads and writes."""
