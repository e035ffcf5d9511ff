package app

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/version"
	"github.com/rltrain/rltrain/torch"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version, and with --json the commit, the build, and the libtorch in use",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print a JSON object"}},
		Action: func(c *cli.Context) error {
			if !c.Bool("json") {
				_, err := fmt.Fprintf(c.App.Writer, "%s version %s\n", c.App.Name, shared.Version)
				return err
			}
			data, err := json.MarshalIndent(buildOf(), "", "  ")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.App.Writer, "%s\n", data)
			return err
		},
	}
}

// build is the output of version --json. Empty fields are unknown.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Changed  bool   `json:"changed"` // the sources were not those of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
	ABI      int    `json:"abi"` // of the native core
	Core     string `json:"core"`
	Libtorch struct {
		Version string `json:"version"` // needed
		Folder  string `json:"folder"`
		From    string `json:"from"`
		Missing string `json:"missing,omitempty"`
	} `json:"libtorch"`
}

func buildOf() build {
	b := build{Version: shared.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, ABI: torch.ABIVersion}
	b.Commit, b.Changed = version.Commit()
	b.Core, _ = torch.Library() // an error is that of FindLibtorch too
	b.Libtorch.Version = torch.LibtorchVersion
	found, err := torch.FindLibtorch()
	b.Libtorch.Folder, b.Libtorch.From = found.Dir, found.From
	if err != nil {
		b.Libtorch.Missing = err.Error()
	}
	return b
}
