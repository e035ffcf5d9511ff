package app

import (
	_ "embed"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

// The completion scripts ask rltrain for words; if there are none, the shell completes file names.
var (
	//go:embed completion.bash
	bashCompletion string
	//go:embed completion.zsh
	zshCompletion string
	//go:embed completion.fish
	fishCompletion string
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a shell completion script for bash, zsh or fish",
		ArgsUsage: "SHELL",
		Description: `bash: source <(rltrain completion bash)
zsh:  source <(rltrain completion zsh)
fish: rltrain completion fish | source`,
		Action: func(c *cli.Context) error {
			script := ""
			switch shell := c.Args().First(); shell {
			case "bash":
				script = bashCompletion
			case "zsh":
				script = zshCompletion
			case "fish":
				script = fishCompletion
			default:
				return shared.UsageErrorf("completion: unknown shell %q; choose bash, zsh or fish", shell)
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// completeValue returns values for the option before the completion request. ok is false if the last word is not an option
// with known values; then the shell completes file names.
func completeValue(args []string) (values []string, ok bool) {
	n := len(args) - 1
	if n < 1 || args[n] != "--generate-bash-completion" {
		return nil, false
	}
	args = args[:n]
	if args[len(args)-1] == "=" {
		args = args[:len(args)-1]
	}
	if len(args) == 0 || !strings.HasPrefix(args[len(args)-1], "--") {
		return nil, false
	}
	return config.Completions(args)
}
