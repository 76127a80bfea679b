package flambeau.jni

import java.io.IOException
import java.nio.file.LinkOption.NOFOLLOW_LINKS
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{FileAlreadyExistsException, Files, Path, Paths}

import flambeau.GeneralException

/** A directory of this machine for this user alone, which all of the user's processes know. */
private[jni] object PrivateDirectory {

  /** The directory under `parent`, made where it is missing.
    *
    * Throws GeneralException where it cannot be made, and where others may open what is there.
    *
    * @param setting
    *   what names `parent`
    */
  def apply(parent: String, name: String, setting: String): Path = {
    val user = System.getProperty("user.name")
    val folder = Paths.get(parent, s"$name-$user")
    val owner = PosixFilePermissions.fromString("rwx------")
    try
      if (!Files.isDirectory(folder, NOFOLLOW_LINKS))
        Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(owner))
    catch {
      // Another process made it meanwhile, or it is no directory, as is seen below.
      case _: FileAlreadyExistsException => ()
      case error: IOException =>
        throw new GeneralException(
          s"$folder cannot be made ($error): set $setting to a writable directory",
          error
        )
    }
    // Whoever else may write there could put a program in the place of one that was checked.
    val isOwn = Files.isDirectory(folder, NOFOLLOW_LINKS) &&
      Files.getOwner(folder, NOFOLLOW_LINKS).getName == user &&
      Files.getPosixFilePermissions(folder, NOFOLLOW_LINKS) == owner
    if (!isOwn)
      throw new GeneralException(
        s"$folder is not a directory of $user's own that nobody else may open (a link is none): remove it, or set " +
          s"$setting to a directory of your own"
      )
    folder
  }
}
