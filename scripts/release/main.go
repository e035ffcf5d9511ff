// Command release packs rltrain for other machines, in the folder dist:
//
//	go run ./scripts/release wheel      rltrain-VERSION-py3-none-manylinux_X_Y_x86_64.whl, for pip
//	go run ./scripts/release tarball    rltrain-VERSION-linux-x86_64.tar.xz
//
// It packs the libraries of build/lib and compiles the program. Two runs on one commit write the same bytes. Packages come
// without libtorch, which rltrain setup downloads.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/version"
)

const (
	dist  = "dist"
	stage = "build/release" // where files are stripped
)

// release is what all packages of a commit have in common.
type release struct {
	version string    // by PEP 440
	commit  time.Time // all files in packages are of this time
	files   []file
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kinds []string) error {
	if len(kinds) == 0 {
		return fmt.Errorf("usage: release wheel | tarball ...")
	}
	r, err := newRelease()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return err
	}
	for _, kind := range kinds {
		var path string
		switch kind {
		case "wheel":
			path, err = r.wheel()
		case "tarball":
			path, err = r.tarball()
		default:
			return fmt.Errorf("unknown package %q; want wheel or tarball", kind)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %.1f MB\n", path, float64(info.Size())/1e6)
	}
	return nil
}

// newRelease compiles the program and gathers the files.
func newRelease() (*release, error) {
	r := &release{version: version.Version}
	seconds, err := output("git", "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, err
	}
	r.commit = time.Unix(n, 0).UTC()
	// A commit without its version's tag is on the way to that version.
	tags, err := output("git", "tag", "--points-at", "HEAD")
	if err != nil {
		return nil, err
	}
	changes, err := output("git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if changes != "" || !strings.Contains("\n"+tags+"\n", "\nv"+version.Version+"\n") {
		r.version += ".dev0"
	}
	r.files, err = gather()
	return r, err
}

// output runs a command and returns what it prints.
func output(name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func inStage(name string) string { return filepath.Join(stage, name) }
