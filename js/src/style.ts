/** The page's style sheet, as one text. */

import base from "./style/base.css";
import controls from "./style/controls.css";
import header from "./style/header.css";
import heatmap from "./style/heatmap.css";
import layout from "./style/layout.css";
import overlays from "./style/overlays.css";
import ranks from "./style/ranks.css";
import side from "./style/side.css";
import tables from "./style/tables.css";
import tree from "./style/tree.css";
import views from "./style/views.css";

export const style = [base, layout, controls, header, tree, heatmap, tables, views, side, overlays, ranks].join("\n");
