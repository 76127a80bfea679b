package flambeau

import java.util.concurrent.ConcurrentLinkedQueue

import scala.collection.JavaConverters._

import org.apache.logging.log4j.{Level, LogManager}
import org.apache.logging.log4j.core.{LogEvent, Logger}
import org.apache.logging.log4j.core.appender.AbstractAppender
import org.apache.logging.log4j.core.config.Property

object Logged {

  /** What the logger `flambeau` has at the level INFO while `use` runs, and what that gives. */
  def apply[T](use: => T): (Seq[String], T) = {
    val lines = new ConcurrentLinkedQueue[String]
    val appender = new AbstractAppender("lines", null, null, false, Property.EMPTY_ARRAY) {
      override def append(event: LogEvent): Unit = lines.add(event.getMessage.getFormattedMessage)
    }
    appender.start()
    val logger = LogManager.getLogger("flambeau").asInstanceOf[Logger]
    val level = logger.getLevel
    logger.addAppender(appender)
    logger.setLevel(Level.INFO)
    try {
      val result = use
      (lines.asScala.toList, result)
    } finally {
      logger.setLevel(level)
      logger.removeAppender(appender)
    }
  }
}
