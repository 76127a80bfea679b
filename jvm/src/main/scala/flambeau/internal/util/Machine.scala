package flambeau.internal.util

import java.net.{InetAddress, UnknownHostException}

/** What is asked of the machine that this process is on. */
private[flambeau] object Machine {

  /** Its name, for messages. */
  def hostName: String =
    try InetAddress.getLocalHost.getHostName
    catch { case _: UnknownHostException => "localhost" }
}
