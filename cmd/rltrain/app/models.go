package app

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/torch/gguf/convert"
	"github.com/rltrain/rltrain/torch/hub"
)

func modelsCommand() *cli.Command {
	return &cli.Command{
		Name:  "models",
		Usage: "list the models in the cache, with size, licence and folder",
		Description: `The first models listed have a one-word name that --model takes anywhere; rltrain downloads them on first use. The others
are in rltrain's cache or in the Hugging Face cache. Any model on the Hub works too: --model org/name.`,
		Subcommands: []*cli.Command{{
			Name:      "pull",
			Usage:     "download a model into the cache and print its path",
			ArgsUsage: "NAME",
			Description: `NAME is a one-word name from rltrain models, or org/name on the Hugging Face Hub. Nothing is downloaded
if the cache has the model.`,
			Flags:  []cli.Flag{ggufFlag()},
			Action: pullModel,
		}},
		Action: listModels,
	}
}

// ggufFile is the flag that chooses among the GGUF files of a model.
const ggufFile = "gguf-file"

func ggufFlag() cli.Flag {
	return &cli.StringFlag{Name: ggufFile, Usage: "GGUF file to use if the model is a folder or repository with several"}
}

// chooseGGUF has --model name the file of --gguf-file.
func chooseGGUF(c *cli.Context) error {
	if !c.IsSet(ggufFile) {
		return nil
	}
	if c.String("model") == "" {
		return shared.UsageErrorf("--%s: needs --model, the folder or repository with the file", ggufFile)
	}
	name, err := hub.WithFile(c.String("model"), c.String(ggufFile))
	if err != nil {
		return shared.UsageErrorf("--%s: %v", ggufFile, err)
	}
	return c.Set("model", name)
}

func listModels(c *cli.Context) error {
	if c.Args().Present() {
		return shared.UsageErrorf("models: unexpected argument %q; to download a model: rltrain models pull NAME", c.Args().First())
	}
	list, err := hub.ListCached()
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "NAME\tSIZE\tLICENCE\tFOLDER")
	for _, m := range list {
		folder := m.Dir
		if folder == "" {
			folder = "not downloaded; on first use, or: rltrain models pull " + m.Name
		}
		fmt.Fprintf(out, "%s\t%d MB\t%s\t%s\n", m.Name, (m.Bytes+500_000)/1_000_000, cmp.Or(m.Licence, "?"), folder)
	}
	fmt.Fprintln(out, "tiny\t-\t-\trandom weights, made when a run starts; for the digits tasks")
	return out.Flush()
}

func pullModel(c *cli.Context) error {
	if c.NArg() != 1 {
		return shared.UsageErrorf("models pull needs one NAME; rltrain models lists the one-word names")
	}
	client, done := shared.HubOf(c)
	defer done()
	name, err := hub.WithFile(c.Args().First(), c.String(ggufFile))
	if err != nil {
		return shared.UsageErrorf("--%s: %v", ggufFile, err)
	}
	found, err := client.Model(c.Context, name, hub.Weights)
	if err != nil {
		return err
	}
	path := found.Dir
	// Of a GGUF file: the file itself, for other programs.
	if target, err := os.Readlink(filepath.Join(found.Dir, convert.WeightsFile)); err == nil && strings.HasSuffix(target, ".gguf") {
		path = target
	}
	_, err = fmt.Fprintln(c.App.Writer, path)
	return err
}
