package flambeau.internal.scoring

import java.util.Arrays

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Copies of rows, in memory that is used again for the next rows.
  *
  * @param numFields
  *   of each row
  */
private[flambeau] final class HeldRows(numFields: Int) {
  private val pages = ArrayBuffer.empty[Array[Byte]]
  private var pageOf = new Array[Int](64)
  private var startOf = new Array[Int](64)
  private var sizeOf = new Array[Int](64)
  private val row = new UnsafeRow(numFields)
  private var count = 0
  private var page = 0
  private var end = 0

  /** Forgets all rows. */
  def clear(): Unit = {
    count = 0
    page = 0
    end = 0
  }

  /** Copies a row. */
  def add(copied: UnsafeRow): Unit = {
    val size = copied.getSizeInBytes
    makeRoom(size)
    if (count == pageOf.length) {
      pageOf = Arrays.copyOf(pageOf, count * 2)
      startOf = Arrays.copyOf(startOf, count * 2)
      sizeOf = Arrays.copyOf(sizeOf, count * 2)
    }
    copied.writeToMemory(pages(page), Platform.BYTE_ARRAY_OFFSET + end)
    pageOf(count) = page
    startOf(count) = end
    sizeOf(count) = size
    end += size
    count += 1
  }

  /** A row by its number, good until the next call. */
  def get(index: Int): UnsafeRow = {
    row.pointTo(pages(pageOf(index)), Platform.BYTE_ARRAY_OFFSET + startOf(index), sizeOf(index))
    row
  }

  /** Goes on to the first page from here on that has room; one that is too small for a large row is replaced. */
  private def makeRoom(size: Int): Unit = {
    if (page < pages.length && pages(page).length - end < size && end > 0) {
      page += 1
      end = 0
    }
    if (page == pages.length) pages += new Array[Byte](size.max(HeldRows.PageSize))
    else if (pages(page).length - end < size) pages(page) = new Array[Byte](size)
  }
}

private object HeldRows {
  val PageSize: Int = 1 << 20
}
