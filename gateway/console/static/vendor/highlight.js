// highlight.js with the grammars of common languages. That of TypeScript is for JavaScript too, and that of C++ for C.
import hljs from "./highlight/core.js";
import bash from "./highlight/bash.js";
import cpp from "./highlight/cpp.js";
import csharp from "./highlight/csharp.js";
import css from "./highlight/css.js";
import diff from "./highlight/diff.js";
import dockerfile from "./highlight/dockerfile.js";
import go from "./highlight/go.js";
import ini from "./highlight/ini.js";
import java from "./highlight/java.js";
import json from "./highlight/json.js";
import kotlin from "./highlight/kotlin.js";
import makefile from "./highlight/makefile.js";
import markdown from "./highlight/markdown.js";
import php from "./highlight/php.js";
import python from "./highlight/python.js";
import ruby from "./highlight/ruby.js";
import rust from "./highlight/rust.js";
import shell from "./highlight/shell.js";
import sql from "./highlight/sql.js";
import typescript from "./highlight/typescript.js";
import xml from "./highlight/xml.js";
import yaml from "./highlight/yaml.js";

const grammars = {
  bash, cpp, csharp, css, diff, dockerfile, go, ini, java, json, kotlin, makefile, markdown, php, python, ruby, rust, shell,
  sql, typescript, xml, yaml,
};
for (const [name, grammar] of Object.entries(grammars)) hljs.registerLanguage(name, grammar);
hljs.registerAliases(["javascript", "js", "jsx", "mjs", "cjs"], { languageName: "typescript" });
hljs.registerAliases(["c", "h"], { languageName: "cpp" });

export default hljs;
