package flambeau

import org.scalatest.Tag

/** Marks a part of the main job that `make test-matrix` runs on the older Spark lines too. */
object Matrix extends Tag("matrix")
