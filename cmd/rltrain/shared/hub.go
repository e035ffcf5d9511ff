package main

import (
	"time"

	"github.com/urfave/cli/v2"

	"rltrain/rl/report"
	"rltrain/torch/hub"
)

// newHub is how a command reaches models and data sets by name: with a progress bar, and with warnings where
// bars are. done takes away the bar that a download left unfinished.
func newHub(console *report.Console) (client *hub.Client, done func()) {
	var bar *report.Bar
	size := int64(-1)
	done = func() {
		if bar != nil {
			bar.Done()
		}
		bar, size = nil, -1
	}
	client = &hub.Client{
		Progress: func(repository string, finished, total int64) {
			if total != size {
				bar, size = console.Bar("download", "MiB", int(finished>>20), int(total>>20)), total
			}
			bar.Set(int(finished>>20), repository)
			if finished >= total {
				done()
			}
		},
		Warn: func(message string) { console.Warn("rltrain: warning: " + message) },
	}
	return client, done
}

// hubOf is newHub of a command without a console of its own.
func hubOf(c *cli.Context) (client *hub.Client, done func()) {
	return newHub(report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now))
}
