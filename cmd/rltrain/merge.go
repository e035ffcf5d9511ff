package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
)

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:  "merge",
		Usage: "write a classifier as a full model without an adapter",
		Description: `The result loads in transformers without peft: in AutoModelForSequenceClassification for pooling family, in
AutoModel with head.safetensors for pooling mean. Its README.md shows how.`,
		Flags: []cli.Flag{
			modelFlag(),
			&cli.StringFlag{Name: "output", Usage: "folder of the full model, new or empty"},
		},
		Action: func(c *cli.Context) error {
			dir, err := model(c)
			if err != nil {
				return err
			}
			output := c.String("output")
			if output == "" {
				return usageErrorf("merge needs --output DIR, the folder of the full model")
			}
			return onThread(c, func(context.Context) error {
				policy, err := loadPolicy(dir)
				if err != nil {
					return err
				}
				defer policy.Close()
				if err := policy.Merge(output); err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.App.Writer, output)
				return err
			})
		},
	}
}
