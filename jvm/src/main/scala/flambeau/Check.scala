package flambeau

import flambeau.internal.util.Similarity

/** What values a param takes. */
private[flambeau] sealed trait Check extends Serializable {

  /** Whether the value is allowed. */
  def allows(value: Any): Boolean

  /** Throws ParamException with the param's name, the value and what is allowed, where the value is not. */
  def apply(name: String, value: Any): Unit =
    if (!allows(value))
      throw new ParamException(s"$name must be $this, got ${Check.show(value)}${hint(value)}")

  /** What messages say of a value that is not allowed, after it. */
  protected def hint(value: Any): String = ""

  /** The check as a Param takes it. It never gives false, since Spark's message would not say what is allowed. */
  def of[T](name: String): T => Boolean = new Check.OfParam[T](this, name)
}

private[flambeau] object Check {

  /** Whole numbers from `minimum` to `maximum`, except `without`. */
  final case class Integer(minimum: Long, maximum: Long = Long.MaxValue, without: Option[Long] = None)
      extends Check {
    override def allows(value: Any): Boolean = value match {
      case number @ (_: Int | _: Long) =>
        val whole = number.asInstanceOf[Number].longValue
        whole >= minimum && whole <= maximum && !without.contains(whole)
      case _ => false
    }

    override def toString: String = {
      val end = if (maximum == Long.MaxValue) "" else s" and at most $maximum"
      s"a whole number of at least $minimum$end${without.fold("")(number => s", but not $number")}"
    }
  }

  /** Finite numbers from `minimum` to `maximum` (infinity for no end); an end that is open is itself not allowed. */
  final case class Real(
      minimum: Double,
      maximum: Double = Double.PositiveInfinity,
      openBelow: Boolean = false,
      openAbove: Boolean = false
  ) extends Check {
    override def allows(value: Any): Boolean = value match {
      case number: Double =>
        val above = if (openBelow) number > minimum else number >= minimum
        val below = if (openAbove || maximum.isInfinite) number < maximum else number <= maximum
        above && below
      case _ => false
    }

    override def toString: String = {
      val start = s"a number ${if (openBelow) "above" else "of at least"} ${show(minimum)}"
      if (maximum.isInfinite) start
      else s"$start and ${if (openAbove) "below" else "at most"} ${show(maximum)}"
    }
  }

  /** A string that is not empty. */
  case object Text extends Check {
    override def allows(value: Any): Boolean = value match {
      case text: String => text.nonEmpty
      case _            => false
    }
    override def toString: String = "a string that is not empty"
  }

  /** A string, which may be empty. */
  case object TextOrEmpty extends Check {
    override def allows(value: Any): Boolean = value.isInstanceOf[String]
    override def toString: String = "a string"
  }

  /** One of several words. */
  final case class OneOf(words: String*) extends Check {
    override def allows(value: Any): Boolean = words.contains(value)
    override def toString: String = words.map(Check.show).mkString(" or ")
    protected override def hint(value: Any): String = value match {
      case word: String => Similarity.suggestion(word, words)
      case _            => ""
    }
  }

  /** Different names of columns, at least one. */
  case object Columns extends Check {
    override def allows(value: Any): Boolean = value match {
      case names: Array[String] =>
        names.nonEmpty && names.forall(Text.allows) && names.distinct.length == names.length
      case _ => false
    }
    override def toString: String = "a list of different column names, at least one"
  }

  /** Different names of columns, at least one; others may be empty. */
  case object OutputColumns extends Check {
    override def allows(value: Any): Boolean = value match {
      case names: Array[String] =>
        !names.contains(null) && Columns.allows(names.filter(_.nonEmpty))
      case _ => false
    }
    override def toString: String = "a list of different column names, not all of them empty"
  }

  /** Shapes, each a list of sizes of at least 1. */
  case object Shapes extends Check {
    override def allows(value: Any): Boolean = value match {
      case shapes: Array[Array[Int]] =>
        shapes.nonEmpty && shapes.forall(shape => shape != null && shape.forall(_ >= 1))
      case _ => false
    }
    override def toString: String =
      "a list with a shape for each input, such as [[3, 32, 32]], of sizes of at least 1"
  }

  /** Groups of names, at least one in each, and each name once. */
  case object Groups extends Check {
    override def allows(value: Any): Boolean = value match {
      case groups: Array[Array[String]] =>
        val names = groups.filter(_ != null).flatten
        groups.nonEmpty && groups.forall(group => group != null && group.nonEmpty) &&
        names.forall(Text.allows) && names.distinct.length == names.length
      case _ => false
    }
    override def toString: String =
      "a list of groups, each a list of names of parameters, such as [['encoder.weight', 'encoder.bias']], and each name once"
  }

  /** The names of tensor types, at least one. */
  case object InputTypes extends Check {
    val names: Seq[String] = Seq("auto", "float32", "float64", "int64", "bool", "uint8")
    override def allows(value: Any): Boolean = value match {
      case types: Array[String] => types.nonEmpty && types.forall(names.contains)
      case _                    => false
    }
    override def toString: String = s"a list with one of ${names.mkString(", ")} for each input"
  }

  /** Kinds of outputs, at least one. */
  case object OutputKinds extends Check {
    val names: Seq[String] = Seq(
      "number",
      "logit",
      "logits",
      "probability",
      "probabilities",
      "log_probabilities",
      "labels",
      "label_probabilities"
    )
    override def allows(value: Any): Boolean = value match {
      case kinds: Array[String] => kinds.nonEmpty && kinds.forall(names.contains)
      case _                    => false
    }
    override def toString: String = s"a list with one of ${names.mkString(", ")} for each output"
  }

  /** Spark ML's thresholds, at least one. */
  case object Thresholds extends Check {
    override def allows(value: Any): Boolean = value match {
      case limits: Array[Double] =>
        limits.nonEmpty && limits.forall(limit => limit >= 0 && !limit.isInfinite) && limits.count(
          _ == 0
        ) <= 1
      case _ => false
    }
    override def toString: String =
      "a list of a number of at least 0 for each class, one of them 0 at most"
  }

  /** Names, possibly none. */
  case object Names extends Check {
    override def allows(value: Any): Boolean = value match {
      case names: Array[String] => names.forall(Text.allows)
      case _                    => false
    }
    override def toString: String = "a list of names"
  }

  /** A check of the param of that name. */
  private final class OfParam[T](check: Check, name: String) extends (T => Boolean) with Serializable {
    override def apply(value: T): Boolean = {
      check(name, value)
      true
    }
  }

  /** A value as messages show it. */
  def show(value: Any): String = value match {
    case text: String                              => s"'$text'"
    case number: Double if number == number.toLong => number.toLong.toString
    case items: Array[_]                           => items.map(show).mkString("[", ", ", "]")
    case items: Seq[_]                             => items.map(show).mkString("[", ", ", "]")
    case other                                     => String.valueOf(other)
  }
}
