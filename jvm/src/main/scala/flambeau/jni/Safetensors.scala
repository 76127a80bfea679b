package flambeau.jni

import java.io.{DataInputStream, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}

import flambeau.GeneralException
import flambeau.internal.util.Json

/** Files of safetensors: the header's length in eight bytes, the lowest first, then the header, JSON that has each tensor's
  * dtype by its name.
  */
private[jni] object Safetensors {

  /** The dtypes of the tensors, as the format names them: `F64`, `F32`, `BF16`. Throws FlambeauException for another file. */
  def dtypes(path: Path): Seq[String] = {
    val file = new DataInputStream(Files.newInputStream(path))
    try {
      val length = java.lang.Long.reverseBytes(file.readLong())
      if (length < 0 || length > Files.size(path)) throw new IOException(s"a header of $length bytes")
      val header = new Array[Byte](Math.toIntExact(length))
      file.readFully(header)
      Json.fields(Json.parse(new String(header, UTF_8), path.toString)).collect {
        case (name, tensor) if name != "__metadata__" => tensor.path("dtype").asText
      }
    } catch {
      case error: IOException =>
        throw new GeneralException(s"$path has no header of safetensors: $error", error)
    } finally file.close()
  }
}
