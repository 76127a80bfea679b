"""`transform`: the UDF that scores in Python, and the way to the operator that scores in the JVM."""
