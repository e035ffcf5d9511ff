package app

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"rltrain/cmd/rltrain/shared"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes commands and options: bash, zsh or fish",
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
				script = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + bashCompletion
			case "fish":
				var err error
				if script, err = c.App.ToFishCompletion(); err != nil {
					return fmt.Errorf("completion for fish: %w", err)
				}
			default:
				return shared.UsageErrorf("completion: %q is none of bash, zsh and fish", shell)
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// bashCompletion asks the program itself. Where it has nothing to say, bash completes names of files.
const bashCompletion = `_rltrain() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  local asked=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  [[ $word == -* ]] && asked+=("${word/#--/-}") # after -- alone nothing is an option
  COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-bash-completion 2> /dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _rltrain rltrain
`
