// Package dataset reads records and labelled text from CSV, JSON, JSON Lines, Parquet and Arrow files, and splits labelled
// text into training, validation and test rows.
//
// Files are streamed: Records holds one record at a time, Read only the rows. An invalid file is refused with a one-line
// error that names file, line and column: a missing column, an empty text, bytes that are not UTF-8. Silently dropping or
// repairing a row would change results without a trace.
//
// Everything here is a pure function: equal input and seed give equal splits on every machine.
package dataset
