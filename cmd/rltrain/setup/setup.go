// Package setup is the command that downloads libtorch.
package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// Command returns the command setup.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "setup",
		Usage: "download libtorch, which training and inference need",
		Description: fmt.Sprintf(`rltrain needs libtorch %s. setup uses the one in LIBTORCH, in rltrain's cache or in python3's torch package. If there is
none, it downloads one from the package index that pip is configured to use, and checks it by SHA-256. Interrupted
downloads resume. Other commands offer the download on a terminal, or do it with --yes.

For a machine without network access:
  rltrain setup --export wheels     here: download libtorch and the models that rltrain models lists to the folder wheels
  rltrain setup --offline wheels    there: install them from the copied folder`, libtorch.Version),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "device", Value: "cpu", Usage: "cpu, or cuda for an NVIDIA GPU too (2.2 GB more; 2.8 GB on disk)"},
			&cli.StringFlag{Name: "offline", Usage: "install from this folder, made with --export; use no network"},
			&cli.StringFlag{Name: "export", Usage: "only download the files for --offline to this folder"},
			&cli.BoolFlag{Name: "sdk", Usage: "print the variables that building a Go program with rltrain's packages needs"},
		},
		Action: run,
	}
}

func run(c *cli.Context) error {
	sets := []wheel.Set{libtorch.CPU(false)}
	switch device := c.String("device"); device {
	case "cpu":
	case "cuda":
		if !libtorch.ForGPUs {
			return shared.UsageErrorf("--device cuda: only on x86-64, not on %s", runtime.GOARCH)
		}
		sets = append(sets, libtorch.CUDA())
	default:
		return shared.UsageErrorf("--device: %q is not one of cpu, cuda", device)
	}
	if c.IsSet("offline") && c.IsSet("export") {
		return shared.UsageErrorf("--offline and --export exclude each other")
	}
	client, done, err := shared.NewWheels(report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now))
	if err != nil {
		return err
	}
	defer done()
	if dir := c.String("export"); dir != "" {
		for _, known := range hub.KnownModels() {
			sets = append(sets, known.Set())
		}
		if err := client.Save(c.Context, dir, sets...); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.App.Writer, "copy %s to the other machine and run: rltrain setup --offline %s\n", dir, filepath.Base(dir))
		return err
	}
	if client.From = c.String("offline"); client.From != "" {
		if info, err := os.Stat(client.From); err != nil || !info.IsDir() {
			return shared.UsageErrorf("--offline: %s is not a folder", client.From)
		}
	}
	if err := install(c, client, len(sets) > 1); err != nil {
		return err
	}
	if c.Bool("sdk") {
		return printSDK(c)
	}
	return nil
}

// install installs what is missing and prints where everything is.
func install(c *cli.Context, client *wheel.Client, cuda bool) error {
	var missing *libtorch.Missing
	var sets []wheel.Set
	found, err := libtorch.Find(client.Cache)
	if errors.As(err, &missing) {
		sets = append(sets, libtorch.CPU(false))
	} else if err != nil {
		return err
	}
	if _, err := libtorch.FindCUDA(found.Dir, client.Cache); cuda && errors.As(err, &missing) {
		sets = append(sets, libtorch.CUDA())
	} else if err != nil && cuda {
		return err
	}
	for _, known := range hub.KnownModels() {
		if client.From != "" && known.Set().In(client.From) {
			sets = append(sets, known.Set())
		}
	}
	if err := client.InstallAll(c.Context, sets...); err != nil {
		return err
	}
	if found, err = libtorch.Find(client.Cache); err != nil {
		return err
	}
	if c.Bool("sdk") {
		return nil
	}
	fmt.Fprintf(c.App.Writer, "libtorch %s: %s (from %s)\n", libtorch.Version, found.Dir, found.From)
	if cuda {
		dir, err := libtorch.FindCUDA(found.Dir, client.Cache)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "its CUDA libraries: %s\n", dir)
	}
	if err := torch.Open(0); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.App.Writer, "rltrain is ready")
	return err
}
