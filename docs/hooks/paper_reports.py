"""The pages of the paper's experiments, made of each `results/*/report.json`; a hook of MkDocs."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sparsegroup_paper.report import REPORT, read_report, report_files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(Path(config.docs_dir).glob(f"results/*/{REPORT}")):
        for name, content in report_files(read_report(path.parent)).items():
            place = f"results/{path.parent.name}/{name}"
            if files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the repository a link leads to the numbers, on the site to the page made of them."""
    return markdown.replace(f"/{REPORT})", "/report.md)")
