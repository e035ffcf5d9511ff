// Package report is what a user sees of a run: the console with its progress
// bar, logs/metrics.jsonl and logs/training_log.txt, plots, tables, the model
// card and report.html.
//
// Nothing here reads the clock: whoever needs the time is given it.
package report
