package app

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"rltrain/rl/report"
	"rltrain/rl/run"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write report.html, one page about a training run",
		ArgsUsage: "DIR",
		Action: func(c *cli.Context) error {
			dir := c.Args().First()
			record, err := run.ReadRun(dir)
			if err != nil {
				return err
			}
			path, err := report.WriteHTML(dir, record.About())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.App.Writer, path)
			return err
		},
	}
}
