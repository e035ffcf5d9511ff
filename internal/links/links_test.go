// Package links only has a test, which follows the links of the project's pages.
package links_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

const root = "../.."

// link is [text](target) or ![text](target) in Markdown; a target with spaces is not a link.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// TestLinks follows every link to a file of the project or a heading of a page.
func TestLinks(t *testing.T) {
	pages := 0
	must.Do(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && (name == "testdata" || name == "build" || name == "models" || strings.HasPrefix(name, ".") && name != ".." && name != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range link.FindAllStringSubmatch(withoutCode(string(text)), -1) {
			expect.Same(t, "", follow(path, found[1]), "%s: %s", strings.TrimPrefix(path, root+"/"), found[1])
		}
		return nil
	}))
	expect.True(t, pages >= 5, "%d pages were read, want all", pages)
}

// TestReadmeIsShort: details belong in docs.
func TestReadmeIsShort(t *testing.T) {
	n := strings.Count(must.Read(t, filepath.Join(root, "README.md")), "\n")
	expect.True(t, n <= 120, "README.md has %d lines, want at most 120", n)
}

// follow returns what is wrong with a link on the page at path, or "".
func follow(path, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" {
		return "" // external
	}
	to := path
	if u.Path != "" {
		to = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
	}
	if _, err := os.Stat(to); err != nil {
		return "there is no such file"
	}
	if u.Fragment == "" || filepath.Ext(to) != ".md" {
		return ""
	}
	text, err := os.ReadFile(to)
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(withoutCode(string(text))) {
		if strings.HasPrefix(line, "#") && anchor(line) == u.Fragment {
			return ""
		}
	}
	return "the page has no such heading"
}

// anchor is the link name of a heading.
func anchor(heading string) string {
	heading = strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#")))
	return strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(heading, ""), " ", "-")
}

// withoutCode removes code blocks.
func withoutCode(text string) string {
	parts := strings.Split(text, "\n```")
	var b strings.Builder
	for i := 0; i < len(parts); i += 2 {
		b.WriteString(parts[i])
	}
	return b.String()
}
