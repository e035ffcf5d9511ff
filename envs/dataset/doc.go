// Package dataset reads records, and labelled text, from CSV, JSON, JSON Lines
// and Parquet files, and divides labelled text into training, validation and
// test parts.
//
// Files are read as a stream: Records holds one record at a time, Read only the
// rows themselves. A file that cannot be trained on as it stands (a row short of
// a column, an empty text, bytes that are not UTF-8) is refused with one line
// that names the file, the line and the column, because a row silently dropped
// or repaired changes the result without a trace.
//
// Everything here is a pure function of its arguments; equal input and seed
// give equal parts on every machine.
package dataset
