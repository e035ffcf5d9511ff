package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

const (
	tokenizersModule  = "github.com/daulet/tokenizers"
	tokenizersLibrary = "libtokenizers.a"
)

// printSDK prints the variables for `go build` of a program that imports rltrain's packages, and for running it.
func printSDK(c *cli.Context) error {
	core, err := torch.Library()
	if err != nil {
		return err
	}
	tokenizers, err := findTokenizers(filepath.Dir(core))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "export CGO_LDFLAGS=%s\nexport RLTRAIN_LIB=%s\n", shared.ShellQuote("'-L"+tokenizers+"'"), shared.ShellQuote(core))
	return err
}

// findTokenizers returns the folder of the tokenizers' library: that of the core, as in a tarball, or the cache's, where
// building rltrain puts it.
func findTokenizers(core string) (string, error) {
	dirs := []string{core}
	if cache, err := hub.CacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "tokenizers-"+tokenizersVersion()))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, tokenizersLibrary)); err == nil {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("%s is in none of %q; the release's tarball has it, and building rltrain from its source makes it", tokenizersLibrary, dirs)
}

// tokenizersVersion is the version of the module that this program was built with.
func tokenizersVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == tokenizersModule {
				return module.Version
			}
		}
	}
	return ""
}
