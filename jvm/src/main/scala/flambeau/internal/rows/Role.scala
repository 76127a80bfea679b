package flambeau.internal.rows

/** What a tensor is for. */
private[flambeau] sealed abstract class Role(val name: String) extends Serializable {
  override def toString: String = name
}

private[flambeau] object Role {
  case object Input extends Role("input")
  case object Label extends Role("label")
  case object Weight extends Role("weight")
}
