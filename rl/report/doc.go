// Package report shows runs to users: console and progress bar, logs/metrics.jsonl, logs/training_log.txt, plots, tables,
// model card and report.html.
//
// Nothing here reads the clock: callers pass the time.
package report
