// Package shared is what several commands do alike: finding models and data, computing on a thread, and telling a user
// of mistakes.
package shared

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

// NewHub is how a command reaches models and data sets by name: with a progress bar, and with warnings where
// bars are. done takes away the bar that a download left unfinished.
func NewHub(console *report.Console) (client *hub.Client, done func()) {
	progress, done := console.Downloads()
	return &hub.Client{Progress: progress, Warn: Warner(console)}, done
}

// Warner prints a message where bars are.
func Warner(console *report.Console) func(message string) {
	return func(message string) { console.Warn("rltrain: warning: " + message) }
}

// HubOf is NewHub of a command without a console of its own.
func HubOf(c *cli.Context) (client *hub.Client, done func()) {
	return NewHub(report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now))
}

// FindDataset finds the parts of a data set: a file or a folder, as dataset.Find does, or a repository of the
// Hub, org/name or org/name@revision, of which client fetches the files of the splits ("train", "validation",
// "test"), of all with none. config names one of several configurations, "" the default or only one.
func FindDataset(ctx context.Context, client *hub.Client, name, config string, splits ...string) ([]dataset.Part, error) {
	_, err := os.Stat(name)
	if path := filepath.IsAbs(name) || strings.HasPrefix(name, ".") || dataset.Readable(name); path || !errors.Is(err, fs.ErrNotExist) {
		return dataset.Find(config, name)
	}
	var parts []dataset.Part
	dir, err := client.Dataset(ctx, name, func(names []string, readme []byte) (files []string, err error) {
		parts, err = dataset.Choose(config, names, readme, splits...)
		for _, part := range parts {
			files = append(files, part.Files...)
		}
		return files, err
	})
	if err != nil {
		return nil, err
	}
	return dataset.Under(dir, parts), nil
}

// Finder is FindDataset by a client, as envs.Setup takes it.
func Finder(client *hub.Client) func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error) {
	return func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error) {
		return FindDataset(ctx, client, name, config, splits...)
	}
}

// IsAdapter tells a folder with an adapter in it.
func IsAdapter(dir string) bool { return files.Exist(dir, lora.ConfigFile) }
