package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"rltrain/rl/report"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write report.html, one page about a training run",
		ArgsUsage: "DIR",
		Action: func(c *cli.Context) error {
			path, err := report.WriteHTML(c.Args().First())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.App.Writer, path)
			return err
		},
	}
}
